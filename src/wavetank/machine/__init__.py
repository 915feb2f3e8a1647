"""The machine at hand: its hardware limits, the threads and the device that a call may use, and what was measured.

* :mod:`~wavetank.machine.limits` - cores, memory, copy bandwidth, peak flops;
* :mod:`~wavetank.machine.profiles` - measurements that are kept from one process to the next;
* :mod:`~wavetank.machine.threads`, :mod:`~wavetank.machine.quota`, :mod:`~wavetank.machine.thread_pool` - how many
  threads a call may use, and the threads themselves;
* :mod:`~wavetank.machine.cuda` - the GPU, where there is one.
"""
