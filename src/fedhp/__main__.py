"""`python -m fedhp` is `fedhp`."""

from fedhp.cli import main

if __name__ == "__main__":
    main()
