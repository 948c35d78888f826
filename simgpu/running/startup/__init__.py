"""The folder that Python processes of a simulated run search first, because of its sitecustomize."""
