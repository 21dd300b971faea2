"""What a run did and cost, and what theory expects of it."""
