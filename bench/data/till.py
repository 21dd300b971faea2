class Till:
    """The till of a small shop; amounts are in cents."""

    def __init__(self) -> None:
        self.items: dict[str, int] = {}

    def show(self, cents: int) -> str:
        """Write an amount for people to read."""
        return f"{cents / 100:.2f} EUR"

    def scan(self, name: str, cents: int) -> str:
        """Take one more item."""
        self.items[name] = self.items.get(name, 0) + cents
        return f"{name}: {self.show(cents)}"

    def total(self) -> int:
        """What the customer has to pay."""
        return sum(self.items.values())

    def receipt(self) -> str:
        """List what was bought, and the sum."""
        lines = [f"{name:<20} {self.show(cents)}" for name, cents in self.items.items()]
        lines.append(f"{'total':<20} {self.show(self.total())}")
        return "\n".join(lines)

    def change(self, paid: int) -> str:
        """Say what goes back to the customer, or what is missing."""
        if paid < self.total():
            return f"{self.show(self.total() - paid)} are missing"
        return f"{self.show(paid - self.total())} back"
