"""The dashboard of a running gateway: a pure view of a snapshot, and the loop that keeps it live."""
