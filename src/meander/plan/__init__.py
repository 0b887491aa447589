"""The plan: a flow at one version, as immutable nodes that know their columns. Pure.

This room describes operators: names, inputs, schemas, expressions, windows; the stages that they
make; how a plan is explained, compared and pickled. Their work on rows is in ``task``. A plan that
exists is valid: every check is made when it is built.

May import: the ground, the vocabulary, and the protocols of ``connect``. ``change/`` has modifications as data.
Begin with ``graph.py`` and ``operators.py``, then ``stages.py``.
"""
