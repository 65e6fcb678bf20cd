"""The slow, obvious matcher that the real one is compared with: `matcher.reconcile`.

Apart from everything it checks: it shares the recipe's model with it, and nothing else.
"""
