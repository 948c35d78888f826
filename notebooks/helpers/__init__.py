"""What one chapter or a few of them use: the course's models, estimates, and drawings.

They import labkit, which measures, compares and draws for all chapters; labkit imports none of them. A chapter imports
what it uses, after `import labkit`, which also finds this folder from a copy of a notebook elsewhere:

    from helpers import models
"""
