"""The dashboard of a running gateway, or of several (``fetchgate top``).

**top** and **fleet_top** are the screens of one gateway and of several: they ask (**asking**), and draw. Only
**terminal**, **gateways** and these three do I/O; all other modules are sans-IO.
"""
