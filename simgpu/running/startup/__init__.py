"""What a Python process of a simulated run finds first on its path: sitecustomize."""
