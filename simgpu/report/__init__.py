"""Reports of a program's GPU memory: the verdict, the peak, its parts and lines, and findings with remedies."""
