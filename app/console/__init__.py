"""The web console: its pages and their security headers. The pages call the same API as every other client."""
