"""Commands of the server: run it, set it up and maintain it. The package of the client has all others."""
