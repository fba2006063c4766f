"""``python -m app.cli``: run the command without an installed script."""

from app.cli.root import main

main()
