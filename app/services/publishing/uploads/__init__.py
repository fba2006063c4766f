"""Uploads that survive: sessions of checked parts, finished once however often they are begun."""
