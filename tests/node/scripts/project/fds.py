import os
import signal

print(sorted(os.listdir("/proc/self/fd"), key=int)[:-1], signal.pthread_sigmask(signal.SIG_BLOCK, ()))
print([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)])
print(signal.set_wakeup_fd(-1), os.getsid(0) == os.getpid(), oct(os.stat("/proc/self/fd/1").st_mode))
