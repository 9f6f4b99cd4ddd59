"""The estimators for code that runs on the ranks, with the interface of `sklearnex.spmd`.

Each rank passes its own rows; together the ranks compute what the estimators of the same name compute for the joined
rows. The code runs in a ``%%xpu`` cell, or in a script under ``xpulab run -n 4 script.py``::

    from xpulab.spmd.cluster import KMeans
    KMeans(n_clusters=8).fit(mine).labels_
"""
