"""Files of tenants: their contents in the store and on this node, uploads, expiry and deletion."""
