"""What a chat becomes before the engine sees it: defaults of a version, prompt formats, templates in a sandbox."""
