// Everything is listening: draw for the first time.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
changed();
