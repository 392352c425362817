import tools  # noqa: F401 - tells what to do if fetchgate's packages are missing
