"""Stores: a flat space of names with ``put_if_absent``, in a folder, S3 or Redis.

``contract.py`` has the contract, the store that is a folder, and ``open_store``. ``s3.py`` and ``redis.py`` import their clients
only when such a store is opened. ``lease.py`` is the right to run on a store that has no file locks.

May import: the ground; of ``state`` only ``state/signs.py``, which a lease is read with.
Begin with ``contract.py``.
"""
