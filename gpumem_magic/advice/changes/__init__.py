"""What rules write: changes that more than one rule or cell can use."""
