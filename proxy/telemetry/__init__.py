"""What a gateway tells of itself: totals, history, log lines, metrics, state and the admin endpoint."""
