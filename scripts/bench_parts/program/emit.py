"""Write so many bytes of log lines, and into a file how many seconds that took."""

import os
import sys
import time

LINES = [
    b"iteration %07d loss %.4f grad_norm 1.0312 lr 3.0e-04 tokens/s 48123\n" % (i, 2 + 1 / i)
    for i in range(1, 4001)
]
block = b"".join(LINES)
left = int(sys.argv[1])
began_s = time.monotonic()
while left > 0:
    left -= os.write(1, block[:left])
if len(sys.argv) > 2:
    with open(sys.argv[2], "w") as file:
        file.write(str(time.monotonic() - began_s))
