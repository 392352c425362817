"""Playing captured requests against a live gateway or broker."""
