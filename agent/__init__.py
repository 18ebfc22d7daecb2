"""The agent: reads one machine and the training processes on it."""

import os

# Before numpy is imported, here or in a child: its library of linear algebra, which nothing here asks for anything,
# would begin a thread for each of 64 processors, as many as a unit may have in all.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
