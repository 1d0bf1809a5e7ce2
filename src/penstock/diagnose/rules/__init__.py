"""One cause a file, named as the file: what it sees, why it hurts, how to tell it from its look-alikes, what to do.

The module's docstring is the rule's page in the docs; `look(evidence)` is the rule.
"""
