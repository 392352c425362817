"""The dashboard of a running gateway: a pure view of a snapshot, and the loop that keeps it live.

- **snapshot** (sans-IO): the JSON of ``/state``, in types; what is missing in it counts as nothing.
- **figures** (sans-IO): numbers in few characters.
- **choice** (sans-IO): what the person at the keys has chosen, and what a key makes of it.
- **view** (sans-IO): snapshot, choice and size in; what rich prints out.
- **top**: asks ``/state`` again and again, reads keys, draws.
"""
