"""The agent: reads one machine and the training processes on it."""

import os

# Before numpy is imported, here or in a child: its library of linear algebra, which nothing here asks for anything,
# would begin a thread for each of 64 processors. That is as many as a unit may have, and more memory than a child.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
