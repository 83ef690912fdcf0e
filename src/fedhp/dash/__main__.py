"""The process that `--dash` starts; people use `fedhp dash`."""

from fedhp.dash.child import main

if __name__ == "__main__":
    main()
