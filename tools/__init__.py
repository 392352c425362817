"""What the project is developed, demonstrated and measured with; none of it is installed."""
