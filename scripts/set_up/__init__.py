"""Set-up of a checkout: Debian packages, the virtual environment, Python packages, the linker's C libraries.

Standard library only, since it runs before anything is installed.
"""
