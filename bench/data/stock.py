class Stock:
    """What lies on the shelves of a small shop."""

    def __init__(self) -> None:
        self.count: dict[str, int] = {}
        self.price: dict[str, float] = {}

    def add(self, name: str, count: int, price: float) -> None:
        """Put some pieces of one kind on the shelf."""
        if count < 1:
            raise ValueError(f"count must be positive, got {count}")
        self.count[name] = self.count.get(name, 0) + count
        self.price[name] = price

    def remove(self, name: str, count: int) -> None:
        """Take some pieces of one kind away."""
        if count > self.count.get(name, 0):
            raise ValueError(f"only {self.count.get(name, 0)} of {name} left")
        self.count[name] -= count

    def total(self) -> float:
        """What all of it is worth."""
        return sum(self.price[name] * count for name, count in self.count.items())

    def running_low(self, limit: int = 3) -> list[str]:
        """The names of what should be ordered soon."""
        return sorted(name for name, count in self.count.items() if count <= limit)
