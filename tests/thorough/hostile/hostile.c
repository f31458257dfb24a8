/* A training binary that does one bad thing. Which, its weights say: `NAME\nSECRET-FILE\nFILE-BESIDE\nPID\n`, and files of the
 * agent's home, of its spool and of another job, which anyone may read and write.
 *
 * It keeps the contract around the bad thing, so that only that is judged. What should not have worked and did is told as
 * `BREACH: ...` on the standard error; what was refused by an error, as `refused: ...`. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static char name[200], secret[1000], beside[1000], home[1000], spooled[1000], other_job[1000], orders[6000];
static int agent;
static const char *command, *out, *save;
static int steps;

static void say(const char *line) { printf("%s\n", line), fflush(stdout); }
static void breach(const char *what) { fprintf(stderr, "BREACH: %s\n", what); }
static void tried(const char *what, long result) {
    if (result >= 0) breach(what);
    else fprintf(stderr, "refused: %s: %s\n", what, strerror(errno));
}
static int is(const char *what) { return strcmp(name, what) == 0; }
static void nap(long ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }
static void hang(void) { for (;;) nap(1000); }
static void start(void) {
    say("{\"event\":\"start\",\"arena_bytes\":1000,\"weights_bytes\":64,\"optimizer_bytes\":32,\"threads\":1}");
}

static void read_path(const char *path) {
    char bytes[64];
    int file = open(path, O_RDONLY | O_NONBLOCK);
    if (file < 0) { tried(path, -1); return; }
    long got = read(file, bytes, sizeof bytes);
    tried(path, got > 0 ? 0 : -1);
    close(file);
}
static void write_path(const char *path, int flags) { tried(path, open(path, O_WRONLY | O_NONBLOCK | flags, 0666)); }

/* Files of `out/`: W is what the agent will read. */
static int files(const char *w) {
    if (is("out-symbolic-link")) unlink(w), tried("symlink", symlink(secret, w));
    else if (is("out-hard-link")) tried("link", link(w, "out/second"));
    else if (is("out-link-to-outside")) tried("link", linkat(AT_FDCWD, secret, AT_FDCWD, "out/second", 0));
    else if (is("out-fifo")) unlink(w), tried("mkfifo", mkfifo(w, 0666));
    else if (is("out-device")) unlink(w), tried("mknod", mknod(w, S_IFCHR | 0666, 0x105));
    else if (is("out-socket")) unlink(w), tried("mknod", mknod(w, S_IFSOCK | 0666, 0));
    else if (is("out-folder")) unlink(w), tried("mkdir", mkdir(w, 0777));
    else if (is("out-set-user-id")) tried("chmod", chmod(w, 06755));
    else if (is("out-deep-tree")) for (int i = 0; i < 3000 && mkdir("out/d", 0777) == 0; i++) chdir("out/d");
    else if (is("out-extended-attribute")) tried("setxattr", syscall(SYS_setxattr, w, "user.x", "y", 1, 0));
    else if (is("out-sparse-giant")) { int f = open(w, O_WRONLY); if (ftruncate(f, 1L << 24)) perror("truncate"); }
    else if (is("out-sparse-beyond-limit")) { int f = open(w, O_WRONLY); tried("truncate", ftruncate(f, 1L << 45)); }
    else if (is("out-missing")) unlink(w);
    else if (is("out-moved-away")) rename("out", "away"), unlink(w);
    else if (is("out-odd-names")) {
        const char *odd[] = {"out/-rf", "out/\n", "out/\xff\xfe", "out/\033[2J", "out/ "};
        for (int i = 0; i < 5; i++) close(open(odd[i], O_CREAT | O_WRONLY, 0666));
    } else if (is("out-overwrites-itself")) {
        write_path("bundle/bin/step", O_TRUNC);
        write_path("bundle/weights.safetensors", 0);
        write_path("new-file", O_CREAT);
    } else return 0;
    return 1;
}

/* What it says. */
static int words(void) {
    if (is("says-garbage")) say("this is no event");
    else if (is("says-a-list")) say("[1, 2, 3]");
    else if (is("says-nul")) fwrite("{\"event\":\0\"done\"}\n", 1, 18, stdout), fflush(stdout);
    else if (is("says-invalid-utf8")) say("{\"event\":\"error\",\"code\":\"\xff\xfe\",\"message\":\"\xc3\"}");
    else if (is("says-escapes")) {
        say("{\"event\":\"error\",\"cause\":\"internal\",\"code\":\"x.y\",\"message\":\"\\u001b[2J\\u001b]0;owned\\u0007\\u009b2J\\u007f\\r\"}");
        fprintf(stderr, "\033[2J\033]0;owned\007\n");
        exit(2);
    } else if (is("says-lines-of-a-log")) {
        fprintf(stderr, "x\n2000-01-01T00:00:00.000Z CRITICAL forged\r\033[2J\xc2\x9b" "2J\xe2\x80\xa8x\n{\"event\": \"forged\"}\n");
        exit(2);
    } else if (is("says-huge-numbers")) say("{\"event\":\"step\",\"step\":1,\"loss\":1e999,\"us\":1e308}");
    else if (is("says-a-long-integer")) {
        printf("{\"event\":\"step\",\"step\":");
        for (int i = 0; i < 100000; i++) putchar('9');
        say(",\"loss\":1,\"us\":1}");
    } else if (is("says-deep-nesting")) { for (int i = 0; i < 100000; i++) putchar('['); say(""); }
    else if (is("says-too-many-steps")) for (int i = 1; i < 100; i++) printf("{\"event\":\"step\",\"step\":%d,\"loss\":1,\"us\":1}\n", i);
    else if (is("says-no-newline")) { printf("{\"event\":\"done\""); fflush(stdout); exit(0); }
    else if (is("floods-one-line")) for (int i = 0; i < 4000000; i++) putchar('x');
    else if (is("floods-errors")) for (int i = 0; i < 30000; i++) fprintf(stderr, "a line of no use, number %d\n", i);
    else if (is("forges-launch")) say("{\"event\":\"launch\",\"monotonic_s\":0}");
    else if (is("forges-device-error")) {
        say("{\"event\":\"error\",\"cause\":\"device\",\"code\":\"launch.sandbox\",\"message\":\"the board is broken\"}");
        exit(5);
    } else if (is("writes-every-descriptor")) {
        const char *line = "{\"event\":\"error\",\"code\":\"launch.sandbox\",\"message\":\"forged\"}\n";
        for (int file = 3; file < 1024; file++) if (write(file, line, strlen(line)) > 0) breach("a descriptor");
    } else return 0;
    return 1;
}

static void *sleeper(void *_) { hang(); return _; }
static void fill(const char *path, long bytes, int is_kept) {
    static char block[1 << 16];
    int file = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0666);
    if (!is_kept) unlink(path);
    while (bytes > 0 && write(file, block, sizeof block) > 0) bytes -= sizeof block;
    if (is_kept) close(file);
}

/* What it takes. */
static int resources(void) {
    char path[100];
    if (is("fork-bomb")) for (;;) { if (fork() < 0) { tried("fork", -1); return 1; } }
    else if (is("many-processes")) for (int i = 0; i < 50; i++) { if (fork() == 0) { memset(malloc(1 << 26), 1, 1 << 26); hang(); } }
    else if (is("thread-bomb")) { pthread_t t; int n = 0; while (n < 100000 && pthread_create(&t, NULL, sleeper, NULL) == 0) n++; if (n > 5000) breach("threads"); }
    else if (is("memory-by-mapping")) for (int i = 0; i < 1 << 16; i++) {
        char *block = mmap(NULL, 1 << 24, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block == MAP_FAILED) { perror("mmap"); exit(4); }
        memset(block, 1, 1 << 24);
    } else if (is("memory-shared")) for (int i = 0; i < 1 << 16; i++) {
        char *block = mmap(NULL, 1 << 24, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (block == MAP_FAILED) { perror("mmap"); exit(4); }
        memset(block, 1, 1 << 24);
    } else if (is("memory-by-segment")) tried("shmget", syscall(SYS_shmget, 0, 1L << 30, 01666));
    else if (is("memory-by-file")) tried("memfd_create", syscall(SYS_memfd_create, "x", 0));
    else if (is("memory-by-ram-disk")) write_path("/dev/shm/pockfarm-hostile", O_CREAT);
    else if (is("memory-locked")) tried("mlockall", syscall(SYS_mlockall, 3));
    else if (is("disk-one-file")) { fill("out/big", 1L << 30, 1); exit(4); }
    else if (is("disk-many-files")) { for (int i = 0; i < 200; i++) snprintf(path, 100, "out/f%d", i), fill(path, 4 << 20, 1); hang(); }
    else if (is("disk-without-names")) { for (int i = 0; i < 100; i++) snprintf(path, 100, "out/f%d", i), fill(path, 4 << 20, 0); hang(); }
    else if (is("disk-nameless-from-birth")) tried("O_TMPFILE", open("out", O_TMPFILE | O_WRONLY, 0666));
    else if (is("many-files")) { for (int i = 0; i < 3000; i++) snprintf(path, 100, "out/f%d", i), fill(path, 0, 1); hang(); }
    else if (is("all-descriptors")) { int n = 0; while (open("out", O_RDONLY) >= 0) n++; if (n > 1000) breach("descriptors"); }
    else if (is("spins")) for (volatile long i = 0;; i++) {}
    else return 0;
    return 1;
}

/* What it does to others. */
static int signals(void) {
    if (is("kills-the-agent")) tried("kill", kill(agent, SIGKILL));
    else if (is("stops-the-agent")) tried("tgkill", syscall(SYS_tgkill, agent, agent, SIGSTOP));
    else if (is("pins-the-agent")) tried("sched_setaffinity", syscall(SYS_sched_setaffinity, agent, 8, &(long){1}));
    else if (is("looks-where-the-agent-runs")) tried("sched_getaffinity", syscall(SYS_sched_getaffinity, agent, 8, &(long){0}));
    else if (is("reads-the-agents-clock")) tried("clock_gettime", syscall(SYS_clock_gettime, ~(unsigned)agent << 3 | 2, &(struct timespec){0}));
    else if (is("limits-the-agent")) tried("prlimit64", syscall(SYS_prlimit64, agent, RLIMIT_NOFILE, &(struct rlimit){64, 64}, NULL));
    else if (is("kills-everybody")) tried("kill", kill(-1, SIGKILL));
    else if (is("kills-its-group")) kill(0, SIGKILL);
    else if (is("stops-itself")) syscall(SYS_tgkill, getpid(), getpid(), SIGSTOP), hang();
    else if (is("ignores-sigterm")) signal(SIGTERM, SIG_IGN), hang();
    else if (is("leaves-a-daemon")) { if (fork() == 0) { setsid(); if (fork() == 0) hang(); exit(0); } }
    else if (is("hangs-in-silence")) hang();
    else if (is("kills-itself")) syscall(SYS_tgkill, getpid(), getpid(), SIGKILL), hang();
    else if (is("dumps-core")) { *(volatile int *)8 = 1; }
    else if (is("aborts")) abort();
    else if (is("ends-well-without-done")) exit(0);
    else if (is("ends-with-the-launchers-code")) exit(5);
    else if (is("is-done-and-fails")) { say("{\"event\":\"done\",\"peak_rss_bytes\":4096,\"steps\":1}"); exit(1); }
    else if (is("is-done-at-once")) { say("{\"event\":\"done\",\"peak_rss_bytes\":4096,\"steps\":1}"); exit(0); }
    else return 0;
    return 1;
}

/* What it looks at and writes to. */
static int places(void) {
    char path[1100];
    if (is("reads-the-agents-key")) read_path(secret);
    else if (is("reads-the-system")) read_path("/etc/passwd"), read_path("/etc/shadow"), read_path("/root/.bashrc");
    else if (is("reads-other-processes")) {
        for (int i = 0; i < 3; i++) {
            const char *what[] = {"environ", "mem", "maps"};
            snprintf(path, sizeof path, "/proc/%d/%s", agent, what[i]), read_path(path);
        }
    } else if (is("writes-other-memory")) { snprintf(path, sizeof path, "/proc/%d/mem", agent); write_path(path, 0); }
    else if (is("climbs-out")) read_path("../../device-key"), read_path("../../../../../../etc/passwd");
    else if (is("reads-the-environment")) {
        for (char **one = environ; *one; one++)
            if (strncmp(*one, "PATH=", 5) && strncmp(*one, "LANG=", 5) && strncmp(*one, "HOME=", 5) && strncmp(*one, "TMPDIR=", 7)) breach(*one);
    } else if (is("reads-what-anyone-may")) read_path(home), read_path(spooled), read_path(other_job), read_path(beside);
    else if (is("writes-what-anyone-may")) {
        const char *what[] = {home, spooled, other_job, beside};
        for (int i = 0; i < 4; i++) write_path(what[i], O_APPEND), write_path(what[i], O_TRUNC), tried("unlink", unlink(what[i])), tried("rename", rename(what[i], "out/x"));
    } else if (is("writes-outside")) write_path(beside, 0), write_path("/tmp/pockfarm-hostile", O_CREAT), write_path("/var/tmp/pockfarm-hostile", O_CREAT);
    else if (is("opens-devices")) {
        const char *what[] = {"/dev/mem", "/dev/kmsg", "/dev/vda", "/dev/tty", "/dev/fuse", "/dev/kvm", "/dev/vsock"};
        for (int i = 0; i < 7; i++) tried(what[i], open(what[i], O_RDWR | O_NONBLOCK));
    } else if (is("turns-the-kernels-knobs")) {
        write_path("/proc/sysrq-trigger", 0), write_path("/proc/sys/kernel/core_pattern", 0);
        write_path("/sys/kernel/uevent_helper", 0), write_path("/proc/self/oom_score_adj", 0);
        write_path("/sys/devices/system/cpu/cpu1/online", 0);
    } else return 0;
    return 1;
}

static void variant(int trial, int number, const char *times, const char *ratios) {
    printf("{\"event\":\"variant\",\"trial\":%d,\"variant\":%d,\"rounds\":9,\"us\":%s,\"ratio\":%s,\"difference\":0}\n",
           trial, number, times, ratios), fflush(stdout);
}

/* Where it should only time kernels. */
static int tuning(void) {
    if (is("tunes-nothing")) return 1;
    variant(0, 0, "[1, 2, 3]", "[1, 1, 1]");
    if (is("tunes-another-kernel")) variant(7, 0, "[1, 2, 3]", "[1, 1, 1]");
    else if (is("tunes-another-schedule")) variant(0, 7, "[1, 2, 3]", "[1, 1, 1]");
    else if (is("tunes-a-negative-one")) variant(0, -1, "[1, 2, 3]", "[1, 1, 1]");
    else if (is("tunes-quartiles-backwards")) variant(0, 1, "[3, 2, 1]", "[1, 1, 1]");
    else if (is("tunes-without-a-number")) variant(0, 1, "[1, NaN, 3]", "[1, 1, 1]");
    else if (is("tunes-in-negative-time")) variant(0, 1, "[-3, -2, -1]", "[1, 1, 1]");
    else if (is("tunes-with-one-time")) variant(0, 1, "[1]", "[1, 1, 1]");
    else if (is("tunes-and-trains")) say("{\"event\":\"checkpoint\",\"step\":1,\"us\":1}"), say("{\"event\":\"step\",\"step\":1,\"loss\":0,\"us\":1}");
    else if (is("tunes-and-forks")) { for (;;) if (fork() < 0) { tried("fork", -1); return 1; } }
    else if (is("tunes-and-connects")) tried("socket", syscall(SYS_socket, 2, 1, 0));
    else if (is("tunes-and-reads")) read_path(secret), read_path("/etc/passwd"), write_path(beside, 0);
    else if (is("tunes-and-overwrites")) write_path("bundle/bin/step", O_TRUNC), write_path("bundle/manifest.json", 0);
    else if (is("tunes-and-fills")) { fill("out/big", 1L << 30, 1); exit(4); }
    else if (is("tunes-for-ever")) for (;;) variant(0, 1, "[1, 2, 3]", "[1, 1, 1]"), nap(50);
    else return 0;
    return 1;
}

typedef struct { const char *name; long number, a, b, c, d; } call;
#define TEXT(words) ((long)(intptr_t)(words))
/* One call each, which no training binary makes. */
static const call calls[] = {
    {"traces-the-agent", SYS_ptrace, 16, 1, 0, 0}, {"reads-foreign-memory", SYS_process_vm_readv, 1, 0, 0, 0},
    {"makes-a-user-namespace", SYS_unshare, 0x10000000, 0, 0, 0}, {"makes-a-mount-namespace", SYS_unshare, 0x20000, 0, 0, 0},
    {"enters-a-namespace", SYS_setns, 0, 0, 0, 0}, {"clones-into-a-namespace", SYS_clone, 0x10000011, 0, 0, 0},
    {"mounts", SYS_mount, TEXT("none"), TEXT("out"), TEXT("tmpfs"), 0}, {"unmounts", SYS_umount2, TEXT("/"), 2, 0, 0},
    {"changes-its-root", SYS_chroot, TEXT("out"), 0, 0, 0}, {"turns-its-root", SYS_pivot_root, TEXT("."), TEXT("."), 0, 0},
    {"opens-a-tree", SYS_open_tree, -100, TEXT("/"), 1, 0}, {"opens-by-handle", SYS_open_by_handle_at, 0, 0, 0, 0},
    {"unix-socket", SYS_socket, 1, 1, 0, 0}, {"unix-socket-pair", SYS_socketpair, 1, 1, 0, 0}, {"ip-socket", SYS_socket, 2, 1, 0, 0},
    {"ip6-datagrams", SYS_socket, 10, 2, 0, 0}, {"raw-packets", SYS_socket, 17, 3, 768, 0}, {"netlink", SYS_socket, 16, 3, 0, 0},
    {"vsock", SYS_socket, 40, 1, 0, 0}, {"adds-a-key", SYS_add_key, TEXT("user"), TEXT("x"), TEXT("y"), 1},
    {"reads-keyrings", SYS_keyctl, 0, -3, 0, 0}, {"bpf", SYS_bpf, 0, 0, 0, 0}, {"io-uring", 425, 8, 0, 0, 0},
    {"perf-events", SYS_perf_event_open, 0, 0, -1, -1}, {"userfaultfd", SYS_userfaultfd, 1, 0, 0, 0},
    {"changes-personality", SYS_personality, 0x0040000, 0, 0, 0}, {"loads-a-kernel", SYS_kexec_load, 0, 0, 0, 0},
    {"reboots", SYS_reboot, 0xfee1dead, 672274793, 0, 0}, {"sets-the-clock", SYS_clock_settime, 0, 0, 0, 0},
    {"sets-the-host-name", SYS_sethostname, TEXT("owned"), 5, 0, 0}, {"loads-a-module", SYS_init_module, 0, 0, 0, 0},
    {"watches-files", SYS_inotify_init1, 0, 0, 0, 0}, {"watches-all-files", SYS_fanotify_init, 0, 0, 0, 0},
    {"becomes-root", SYS_setresuid, 0, 0, 0, 0}, {"takes-capabilities", SYS_capset, 0, 0, 0, 0},
    {"lifts-its-limits", SYS_setrlimit, 7, 0, 0, 0}, {"starts-a-shell", SYS_execve, TEXT("/bin/sh"), 0, 0, 0},
    {"starts-another-file", SYS_execveat, -100, TEXT("bundle/bin/step"), 0, 0}, {"message-queue", SYS_mq_open, TEXT("/x"), 0102, 0666, 0},
    {"reads-the-kernels-log", SYS_syslog, 3, TEXT(orders), 8, 0}, {"renices", SYS_setpriority, 0, 0, -20, 0},
    {"takes-a-file-descriptor", 438, 0, 0, 0, 0}, {"adds-swap", SYS_swapon, TEXT("out/swap"), 0, 0, 0},
};

static int kernel(void) {
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (is(calls[i].name)) { tried(name, syscall(calls[i].number, calls[i].a, calls[i].b, calls[i].c, calls[i].d)); return 1; }
    if (is("writes-code")) {
        unsigned char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        tried("executable memory", page == MAP_FAILED ? -1 : 0);
#ifdef __x86_64__
    } else if (is("calls-as-32-bit")) {
        long result = 41;
        __asm__ volatile("int $0x80" : "+a"(result) : : "memory");
        breach("int 0x80");
    } else if (is("calls-as-x32")) tried("x32", syscall(0x40000000 + SYS_getpid));
#else
    } else if (is("calls-as-32-bit") || is("calls-as-x32")) tried("ptrace", syscall(SYS_ptrace, 0, 0, 0, 0));
#endif
    else return 0;
    return 1;
}

/* Its copy of the samples: it may read them, and do nothing else with them. */
static void data(void) {
    if (!is("changes-its-data")) return;
    const char *what[] = {"data/array0.npy", "data/array1.npy"};
    for (int i = 0; i < 2; i++) {
        int file = open(what[i], O_RDONLY);
        if (file < 0) breach("the samples are not where they were looked for");
        else close(file);
        write_path(what[i], 0), write_path(what[i], O_TRUNC);
        tried(what[i], rename(save, what[i])), tried(what[i], rename(what[i], "out/moved")), tried(what[i], unlink(what[i]));
    }
    write_path("data/new", O_CREAT), tried("data", rename("data", "out/data"));
}
static void read_orders(const char *path) {
    int file = open(path, O_RDONLY);
    long got = read(file, orders, sizeof orders - 1);
    close(file);
    if (got <= 0 || sscanf(orders, "%199[^\n]\n%999[^\n]\n%999[^\n]\n%d\n%999[^\n]\n%999[^\n]\n%999[^\n]", name, secret, beside, &agent, home, spooled, other_job) != 7) exit(3);
}

int main(int count, char **words_) {
    command = words_[1];
    for (int i = 2; i + 1 < count; i++) {
        if (!strcmp(words_[i], "--weights") && !name[0]) read_orders(words_[i + 1]);
        if (!strcmp(words_[i], "--out")) out = words_[i + 1];
        if (!strcmp(words_[i], "--save")) save = words_[i + 1];
        if (!strcmp(words_[i], "--steps")) steps = atoi(words_[i + 1]);
    }
    if (!strcmp(command, "tune")) read_orders("bundle/weights.safetensors");
    start();
    if (!strcmp(command, "tune")) tuning();
    if (!strcmp(command, "profile")) words() || resources() || signals() || places() || kernel();
    for (int i = 1; i <= steps; i++) nap(2), printf("{\"event\":\"step\",\"step\":%d,\"loss\":1.0,\"us\":1000.0}\n", i);
    if (!strcmp(command, "eval")) say("{\"event\":\"eval\",\"samples\":8,\"loss\":1.0,\"accuracy\":0.5}");
    const char *to = out ? out : save;
    if (to) {
        int file = open(to, O_CREAT | O_WRONLY | O_TRUNC, 0644);
        if (file < 0 || write(file, orders, strlen(orders)) < 0) { perror(to); return 4; }
        close(file);
    }
    if (!strcmp(command, "export")) files(to);
    if (!strcmp(command, "train")) data();
    printf("{\"event\":\"done\",\"peak_rss_bytes\":4096,\"steps\":%d}\n", steps);
    return 0;
}
