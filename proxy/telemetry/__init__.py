"""The gateway's reports about itself: totals, history, log lines, metrics, state and the admin endpoint."""
