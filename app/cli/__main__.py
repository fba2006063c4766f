"""``python -m app.cli``: the command without an installed script."""

from app.cli.root import main

main()
