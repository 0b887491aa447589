"""The shell commands, one file each; ``main.py`` finds them, and turns errors into one line and an exit code.

May import: everything. A command imports what it needs when it runs, so that ``meander --help`` does not wait for Spark.
Begin with ``main.py`` and ``run.py``.
"""
