// Kernels with a thread for each agent on the CPU, included by `builtins.cuh` for the backend `host`.
//
// The CUDA threads of a block are fibres on one OS thread; several OS threads share the blocks. A fibre runs until its CUDA
// thread waits for others or writes to memory that they may read. Then the next CUDA thread runs, on its own fibre. Blocks
// that share an environment run together. Scheduling does not depend on time: the order is the same in every run.
#pragma once

#define WD_FIBRES

#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#if __has_include(<link.h>)
#include <link.h>
#endif

#if !defined(WD_BLOCKS)
#define WD_BLOCKS 1
#endif

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};

static thread_local uint3 threadIdx, blockIdx;
static thread_local dim3 blockDim, gridDim;
constexpr int warpSize = 32;

// Functions whose writes are not a kernel's.
#if defined(__clang__)
#define WD_UNSEEN __attribute__((disable_sanitizer_instrumentation, noinline))  // inlined, clang shows them
#else
#define WD_UNSEEN __attribute__((no_sanitize("thread")))
#endif

namespace wd_fibres {

enum class State { fresh, ready, at_warp, at_block, at_cluster, gone };

struct Site {  // where a thread waits
  const char* what;
  const char* file;
  int line;
};

struct Lanes {  // values that the lanes of a warp passed to a barrier
  unsigned present;
  unsigned long long words[warpSize];
};

// A saved point of execution on a stack. `swapcontext` saves the signal mask by a system call, which costs more than
// everything else here. So most machines use the assembly below.
#if defined(__x86_64__) && defined(__ELF__)
struct Context {
  void* stack;
};
extern "C" __attribute__((visibility("hidden"))) void wd_switch(void** from, void* to);
asm(R"(
.pushsection .text
.hidden wd_switch
.globl wd_switch
.type wd_switch, @function
wd_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size wd_switch, . - wd_switch
.popsection
)");
static void switch_to(Context* const from, Context* const to) { wd_switch(&from->stack, to->stack); }
static void begin(Context* const context, char* const memory, const size_t bytes, void (*work)()) {
  void** const top = reinterpret_cast<void**>(memory + bytes - 16);  // what `work` would return to, aligned as after a call
  top[1] = nullptr;
  top[0] = reinterpret_cast<void*>(work);
  context->stack = top - 6;  // the registers, which are 0 in new memory
}
#else
using Context = ucontext_t;
static void switch_to(Context* const from, Context* const to) { swapcontext(from, to); }
static void begin(Context* const context, char* const memory, const size_t bytes, void (*work)()) {
  getcontext(context);
  context->uc_stack.ss_sp = memory;
  context->uc_stack.ss_size = bytes;
  context->uc_link = nullptr;
  makecontext(context, work, 0);
}
#endif

struct Fibre {
  Context context;
  void* memory;
};

struct Thread {
  State state;
  Fibre* fibre;
  Site site;
  unsigned mask;            // lanes that it waits for
  unsigned long long word;  // value passed to the barrier: a lane's word, or a condition of the block
  int n_holds, n_met;       // of a block's barrier: threads that passed a value other than 0, and all threads
  Lanes lanes;
};

struct Kernel {
  const char* name;
  void (*run)(void** arguments);
};

constexpr size_t stack_bytes = size_t{256} << 10, guard_bytes = size_t{64} << 10;

#if defined(WD_REVERSED)  // `debug` runs threads and blocks in the other order
constexpr bool is_reversed = true;
#else
constexpr bool is_reversed = false;
#endif
#if defined(WD_SERIAL)  // and each thread alone up to its next barrier
constexpr bool is_serial = true;
#else
constexpr bool is_serial = false;
#endif
#if defined(WD_FRESH)  // `debug` fills shared memory with this byte
constexpr bool fills_memory = true;
constexpr int filling = WD_FRESH;
#else
constexpr bool fills_memory = false;
constexpr int filling = 0;
#endif

class Runner;
static thread_local Runner* runner;  // none outside of a launch

// An OS thread: runs the blocks of an environment, then those of the next one.
class Runner {
 public:
  Runner(const Kernel& kernel, void** arguments, int blocks, int threads, double patience)
      : kernel_(kernel), arguments_(arguments), n_threads_(threads), patience_(patience), threads_(threads * WD_BLOCKS) {
    runner = this;
    gridDim = dim3(blocks);
    blockDim = dim3(threads);
    if (WD_BLOCKS > 1 || fills_memory) find_shared_memory();
    watch();
  }

  ~Runner() {
    unwatch();
    for (Fibre& fibre : fibres_) munmap(fibre.memory, guard_bytes + stack_bytes);
    runner = nullptr;
  }

  std::string error;  // empty while all is well

  // Run the blocks of one environment, from `first_block` on; an error stops them.
  void run(const int first_block) {
    first_block_ = first_block;
    for (Thread& thread : threads_) thread.state = State::fresh;
    n_runnable_ = n();
    if (fills_memory) fill_shared_memory();
    for (auto& memory : shared_) memory.assign(shared_memory_, shared_memory_ + shared_bytes_);
    int idle_turns = 0;
    long long n_steps = 0;
    double idle_since = 0.;
    for (int n_left = n(); n_left > 0;) {
      for (current_ = is_reversed ? n() - 1 : 0; current_ >= 0 && current_ < n(); current_ += is_reversed ? -1 : 1) {
        if (threads_[current_].state <= State::ready) resume();
        if (loops_) fail("it neither ends nor waits for others, but loops" + where(current_));
        if (!error.empty()) return;
      }
      const bool any_met = meet();
      int n_gone = 0;
      n_runnable_ = 0;
      for (const Thread& thread : threads_) {
        n_gone += thread.state == State::gone;
        n_runnable_ += thread.state == State::ready;
      }
      if (n_gone < n() && n_runnable_ == 0) return fail("its threads wait for each other: " + waiting());
      if (any_met || n() - n_gone < n_left) {
        idle_turns = 0;
      } else if (++idle_turns == 1) {
        idle_since = now();
        n_steps = n_steps_;
      } else if (idle_turns % 1024 == 0 && now() - idle_since > patience_) {
        if (n_steps_ == n_steps) return fail("its threads try for a lock that is never free: " + waiting());
        if (now() - idle_since > 6. * patience_) return fail("its threads neither end nor wait for others, but loop");
      }
      n_left = n() - n_gone;
    }
  }

  // Before a thread writes to memory that others may read, these run up to the same point. Lanes of a warp run in lockstep
  // on a GPU, and some kernels rely on it: all lanes read, compute and write the same without a barrier. The thread's own
  // stack is private.
  WD_UNSEEN void go_in_step(const void* const address) {
    if (is_serial || !in_kernel_ || n_runnable_ == 1) return;
    const size_t offset = static_cast<const char*>(address) - static_cast<char*>(threads_[current_].fibre->memory);
    if (offset < guard_bytes + stack_bytes) return;
    in_kernel_ = false;
    n_steps_ += 1;
    threads_[current_].state = State::ready;
    leave(threads_[current_].fibre);
    in_kernel_ = true;
  }

  // Wait until the other threads have arrived; returns the thread.
  WD_UNSEEN Thread& wait(State state, Site site, unsigned mask = 0u, unsigned long long word = 0ull) {
    in_kernel_ = false;
    n_runnable_ -= state > State::ready;
    Thread& thread = threads_[current_];
    thread.state = state;
    thread.site = site;
    thread.mask = mask;
    thread.word = word;
    leave(thread.fibre);
    in_kernel_ = true;
    return thread;
  }

  // End the launch with an error.
  [[noreturn]] WD_UNSEEN void stop(const std::string& what) {
    in_kernel_ = false;
    fail(what + where(current_));
    for (;;) leave(threads_[current_].fibre);
  }

 private:
  int n() const { return static_cast<int>(threads_.size()); }

  static double now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  void fail(const std::string& what) { error = std::string("kernel '") + kernel_.name + "': " + what; }

  // ---- scheduling

  // Resume the current thread, and those of its block after it that can run.
  void resume() {
    is_turn_ = true;
    if (Fibre* const fibre = begin_turn()) switch_to(&scheduler_, &fibre->context);
    is_turn_ = false;
  }

  // Switch from a fibre to the next thread of the block if it can run, else to the scheduler.
  void leave(Fibre* const fibre) {
    asm volatile("" ::: "memory");
    const int next = following();
    Fibre* other = nullptr;
    if (error.empty() && next >= 0 && threads_[next].state <= State::ready) {
      current_ = next;
      other = begin_turn();
    }
    switch_to(&fibre->context, other != nullptr ? &other->context : &scheduler_);
    asm volatile("" ::: "memory");
  }

  // Return the block's thread whose turn is after the current one's; -1 if none.
  int following() const {
    if (is_reversed) return current_ % n_threads_ == 0 ? -1 : current_ - 1;
    return (current_ + 1) % n_threads_ == 0 ? -1 : current_ + 1;
  }

  // Return the fibre of the current thread; null, with an error, if memory is exhausted.
  Fibre* begin_turn() {
    Thread& thread = threads_[current_];
    if (thread.state == State::fresh) thread.fibre = free_fibre();
    ++n_turns_;
    enter();
    return thread.fibre;
  }

  // Set the built-in variables and shared memory of the current thread.
  void enter() {
    const int block = current_ / n_threads_;
    if (shared_bytes_ > 0 && block != entered_) {
      std::memcpy(shared_[entered_].data(), shared_memory_, shared_bytes_);
      std::memcpy(shared_memory_, shared_[block].data(), shared_bytes_);
      entered_ = block;
    }
    threadIdx = {static_cast<unsigned>(current_ % n_threads_), 0u, 0u};
    blockIdx = {static_cast<unsigned>(first_block_ + block), 0u, 0u};
  }

  Fibre* free_fibre() {
    if (free_.empty()) {
      void* const memory = mmap(nullptr, guard_bytes + stack_bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED || mprotect(memory, guard_bytes, PROT_NONE) != 0) {
        fail("no memory for the stacks of " + std::to_string(n()) + " threads that wait at once");
        return nullptr;
      }
      Fibre& fibre = fibres_.emplace_back();
      fibre.memory = memory;
      begin(&fibre.context, static_cast<char*>(memory) + guard_bytes, stack_bytes, &Runner::work);
      free_.push_back(&fibre);
    }
    Fibre* const fibre = free_.back();
    free_.pop_back();
    return fibre;
  }

  static void work() {
    for (;;) runner->finish();
  }

  // Run the current thread to its end, and those of its block after it that have not begun; then free the fibre.
  WD_UNSEEN void finish() {
    Fibre* const fibre = threads_[current_].fibre;
    for (;;) {
      in_kernel_ = true;
      kernel_.run(arguments_);
      in_kernel_ = false;
      n_runnable_ -= 1;
      threads_[current_].state = State::gone;
      const int next = following();
      if (next < 0 || threads_[next].state != State::fresh) break;
      current_ = next;
      threads_[next].fibre = fibre;
      ++n_turns_;
      enter();
    }
    free_.push_back(fibre);
    leave(fibre);
  }

  // ---- barriers

  // Release the threads whose awaited threads have all arrived; returns whether there are any.
  bool meet() {
    bool any = false;
    for (int first = 0; first < n(); first += n_threads_) {
      for (int lane = 0; lane < n_threads_; lane += warpSize) any |= meet_in_warp(first + lane, first + n_threads_);
      any |= meet_all(first, first + n_threads_, State::at_block);
    }
    return meet_all(0, n(), State::at_cluster) || any;
  }

  bool meet_all(const int first, const int end, const State state) {
    int n_met = 0, n_holds = 0;
    for (int t = first; t < end; ++t) {
      if (threads_[t].state == State::gone) continue;
      if (threads_[t].state != state) return false;
      n_met += 1;
      n_holds += threads_[t].word != 0;
    }
    for (int t = first; t < end; ++t) {
      if (threads_[t].state == State::gone) continue;
      threads_[t].state = State::ready;
      threads_[t].n_met = n_met;
      threads_[t].n_holds = n_holds;
    }
    return n_met > 0;
  }

  bool meet_in_warp(const int first, const int end) {
    const int size = end - first < warpSize ? end - first : warpSize;
    bool any = false;
    for (int lane = 0; lane < size; ++lane) {
      const Thread& one = threads_[first + lane];
      if (one.state != State::at_warp) continue;
      Lanes met = {0u, {}};
      bool is_whole = true;
      for (int other = 0; other < size; ++other) {
        const Thread& thread = threads_[first + other];
        if (!(one.mask >> other & 1u) || thread.state == State::gone) continue;
        is_whole &= thread.state == State::at_warp && thread.mask == one.mask && thread.site.what == one.site.what;
        met.present |= 1u << other;
        met.words[other] = thread.word;
      }
      for (int other = 0; is_whole && other < size; ++other) {
        if (!(met.present >> other & 1u)) continue;
        threads_[first + other].state = State::ready;
        threads_[first + other].lanes = met;
        any = true;
      }
    }
    return any;
  }

  // ---- detection of endless loops

  // A thread that runs for twice the patience in CPU time without a switch is in an endless loop: the launch ends.
#if defined(__linux__)
  void watch() {
    struct sigaction action = {};
    action.sa_handler = [](int) { runner != nullptr ? runner->look() : void(); };
    action.sa_flags = SA_RESTART;
    sigaction(SIGVTALRM, &action, nullptr);
    sigevent event = {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGVTALRM;
    event._sigev_un._tid = static_cast<int>(syscall(SYS_gettid));
    is_watched_ = timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer_) == 0;
    const time_t seconds = static_cast<time_t>(patience_);
    const timespec every = {seconds, static_cast<long>(1e9 * (patience_ - static_cast<double>(seconds)))};
    const itimerspec times = {every, every};
    if (is_watched_) timer_settime(timer_, 0, &times, nullptr);
  }

  void unwatch() {
    if (is_watched_) timer_delete(timer_);
  }

  WD_UNSEEN void look() {  // in a signal handler, on the stack of the running fibre
    loops_ = is_turn_ && seen_turn_ == n_turns_;
    seen_turn_ = n_turns_;
    if (!loops_) return;
    in_kernel_ = false;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGVTALRM);
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
    Context here;
    switch_to(&here, &scheduler_);
  }

  timer_t timer_;
  bool is_watched_ = false;
#else
  void watch() {}
  void unwatch() {}
#endif

  // ---- messages

  std::string where(const int t) const {
    return ", thread " + std::to_string(t % n_threads_) + " of block " + std::to_string(first_block_ + t / n_threads_);
  }

  std::string waiting() const {  // each place where threads wait, with the first of them
    std::string text;
    std::vector<bool> is_told(n());
    int n_told = 0;
    for (int t = 0; t < n() && n_told < 4; ++t) {
      const Thread& one = threads_[t];
      if (one.state == State::gone || is_told[t]) continue;
      int n_there = 0;
      for (int other = t; other < n(); ++other) {
        const Thread& thread = threads_[other];
        const bool is_there = thread.state != State::gone && thread.site.what == one.site.what &&
                              thread.site.line == one.site.line && thread.mask == one.mask &&
                              other / n_threads_ == t / n_threads_;
        if (is_there) is_told[other] = true;
        n_there += is_there;
      }
      text += (n_told++ ? "; " : "") + std::to_string(n_there) + " in " + one.site.what + " (" + one.site.file + ":" +
              std::to_string(one.site.line) + "), the first" + where(t);
    }
    return text;
  }

  // ---- shared memory

  // Shared memory of a block is thread-local memory of the OS thread. Where several blocks share an OS thread, all of this
  // library's thread-local memory is swapped with the block.
  void find_shared_memory() {
#if __has_include(<link.h>)
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* self) {
          const auto code = reinterpret_cast<ElfW(Addr)>(&Runner::work);
          bool is_ours = false;
          size_t bytes = 0;
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            const ElfW(Phdr)& part = info->dlpi_phdr[i];
            const ElfW(Addr) start = info->dlpi_addr + part.p_vaddr;
            is_ours |= part.p_type == PT_LOAD && code >= start && code < start + part.p_memsz;
            if (part.p_type == PT_TLS) bytes = part.p_memsz;
          }
          if (is_ours) {
            static_cast<Runner*>(self)->shared_memory_ = static_cast<char*>(info->dlpi_tls_data);
            static_cast<Runner*>(self)->shared_bytes_ = bytes;
          }
          return is_ours ? 1 : 0;
        },
        this);
    shared_.resize(WD_BLOCKS);
#endif
    if (shared_memory_ == nullptr) fail("blocks that share an environment need the memory of threads of an ELF file");
  }

  WD_UNSEEN void fill_shared_memory() {
    const dim3 grid = gridDim, block = blockDim;
    std::memset(shared_memory_, filling, shared_bytes_);
    runner = this;
    gridDim = grid;
    blockDim = block;
  }

  const Kernel kernel_;
  void** const arguments_;
  const int n_threads_;  // of a block
  const double patience_;  // in seconds
  volatile long long n_turns_ = 0, seen_turn_ = 0;
  volatile bool is_turn_ = false, loops_ = false;
  bool in_kernel_ = false;  // false while this class's code runs
  int n_runnable_ = 0;      // threads that neither wait nor have ended
  long long n_steps_ = 0;   // number of waits for other threads to reach the same point
  int first_block_ = 0, current_ = 0, entered_ = 0;
  std::vector<Thread> threads_;  // of all blocks of the environment
  std::deque<Fibre> fibres_;
  std::vector<Fibre*> free_;
  Context scheduler_;
  char* shared_memory_ = nullptr;
  size_t shared_bytes_ = 0;
  std::vector<std::vector<char>> shared_;  // of the blocks that are not running
};

// A launch, as `backends/host.py` has it.
struct Launch {
  void** arguments;
  int blocks, threads;
  int parts;  // of the environments, as many as OS threads
  double patience;
  char* error;
  size_t error_bytes;
  int failed;
};

// Run the blocks of some parts; an error ends the launch, with its text.
WD_UNSEEN static void run(const Kernel& kernel, Launch& launch, const int first, const int end) {
  static std::mutex writing;
  volatile int& failed = launch.failed;  // read without a lock: seen late, one more block runs
  Runner own(kernel, launch.arguments, launch.blocks, launch.threads, launch.patience);
  const long long n = launch.blocks / WD_BLOCKS;
  const long long begin = first * n / launch.parts, stop = end * n / launch.parts;
  for (long long i = begin; i < stop && !failed; ++i) {
    own.run(static_cast<int>(is_reversed ? begin + stop - 1 - i : i) * WD_BLOCKS);
    if (own.error.empty()) continue;
    const std::lock_guard<std::mutex> lock(writing);
    if (!failed) snprintf(launch.error, launch.error_bytes, "%s", own.error.c_str());
    failed = 1;
  }
  fflush(stdout);  // as a GPU prints, at the end of a launch
}

}  // namespace wd_fibres

[[noreturn]] static void wd_stop(const std::string& what) {
  if (wd_fibres::runner != nullptr) wd_fibres::runner->stop(what);
  fprintf(stderr, "%s, in a kernel that has no threads\n", what.c_str());
  abort();
}

template <class... More>
static wd_fibres::Thread& wd_wait(const wd_fibres::State state, const wd_fibres::Site site, const More... more) {
  if (wd_fibres::runner == nullptr) wd_stop(site.what);
  return wd_fibres::runner->wait(state, site, more...);
}

#define WD_HERE const char *file = __builtin_FILE(), const int line = __builtin_LINE()
#define WD_SITE(what) wd_fibres::Site{what, file, line}

static inline void wd_sync_env(const char* file, const int line) {
  const wd_fibres::State state = WD_BLOCKS > 1 ? wd_fibres::State::at_cluster : wd_fibres::State::at_block;
  wd_wait(state, WD_SITE("__sync_env_threads"));
}

static inline void __syncthreads(WD_HERE) { wd_wait(wd_fibres::State::at_block, WD_SITE("__syncthreads")); }

static inline int __syncthreads_count(const int holds, WD_HERE) {
  return wd_wait(wd_fibres::State::at_block, WD_SITE("__syncthreads_count"), 0u, holds != 0).n_holds;
}
static inline int __syncthreads_and(const int holds, WD_HERE) {
  const auto& met = wd_wait(wd_fibres::State::at_block, WD_SITE("__syncthreads_and"), 0u, holds != 0);
  return met.n_holds == met.n_met;
}
static inline int __syncthreads_or(const int holds, WD_HERE) {
  return wd_wait(wd_fibres::State::at_block, WD_SITE("__syncthreads_or"), 0u, holds != 0).n_holds > 0;
}

// ---- warps

// Exchange a word with the other lanes of a mask; returns their words.
static inline const wd_fibres::Lanes& wd_meet(wd_fibres::Site site, unsigned mask, unsigned long long word) {
  if (!(mask >> threadIdx.x % warpSize & 1u)) wd_stop(std::string(site.what) + ": the mask lacks the thread's own lane");
  return wd_wait(wd_fibres::State::at_warp, site, mask, word).lanes;
}

static inline void __syncwarp(const unsigned mask = 0xffffffffu, WD_HERE) {
  wd_meet(WD_SITE("__syncwarp"), mask, 0ull);
}

// A single lane is always correct: CUDA does not define which lanes run together.
static inline unsigned __activemask() { return 1u << threadIdx.x % warpSize; }

static inline unsigned __ballot_sync(const unsigned mask, const int holds, WD_HERE) {
  const wd_fibres::Lanes& met = wd_meet(WD_SITE("__ballot_sync"), mask, holds != 0);
  unsigned held = 0u;
  for (int lane = 0; lane < warpSize; ++lane) {
    if (met.present >> lane & 1u && met.words[lane]) held |= 1u << lane;
  }
  return held;
}
static inline int __any_sync(const unsigned mask, const int holds, WD_HERE) {
  return __ballot_sync(mask, holds, file, line) != 0u;
}
static inline int __all_sync(const unsigned mask, const int holds, WD_HERE) {
  return __ballot_sync(mask, !holds, file, line) == 0u;
}

template <class T>
static unsigned __match_any_sync(const unsigned mask, const T value, WD_HERE) {
  unsigned long long word = 0ull;
  std::memcpy(&word, &value, sizeof value);
  const wd_fibres::Lanes& met = wd_meet(WD_SITE("__match_any_sync"), mask, word);
  unsigned same = 0u;
  for (int lane = 0; lane < warpSize; ++lane) {
    if (met.present >> lane & 1u && met.words[lane] == word) same |= 1u << lane;
  }
  return same;
}

// If all lanes passed the same word, true and the lanes' mask; else false and 0.
template <class T>
static unsigned __match_all_sync(const unsigned mask, const T value, int* const all, WD_HERE) {
  const unsigned same = __match_any_sync(mask, value, file, line);
  *all = same == wd_wait(wd_fibres::State::at_warp, WD_SITE("__match_all_sync"), mask).lanes.present;
  return *all ? same : 0u;
}

#define WD_REDUCTION(name, T, expression)                                                      \
  static inline T __reduce_##name##_sync(const unsigned mask, const T value, WD_HERE) {        \
    const wd_fibres::Lanes met = wd_meet(WD_SITE("__reduce_" #name "_sync"), mask, value);     \
    T a = value;                                                                               \
    for (int lane = 0; lane < warpSize; ++lane) {                                              \
      const T b = static_cast<T>(met.words[lane]);                                             \
      if (met.present >> lane & 1u && lane != static_cast<int>(threadIdx.x) % warpSize) a = expression; \
    }                                                                                          \
    return a;                                                                                  \
  }
WD_REDUCTION(add, unsigned, a + b)
WD_REDUCTION(add, int, static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b)))
WD_REDUCTION(min, unsigned, a < b ? a : b)
WD_REDUCTION(min, int, a < b ? a : b)
WD_REDUCTION(max, unsigned, a > b ? a : b)
WD_REDUCTION(max, int, a > b ? a : b)
WD_REDUCTION(and, unsigned, a & b)
WD_REDUCTION(or, unsigned, a | b)
WD_REDUCTION(xor, unsigned, a ^ b)

// The value of the lane `from`, which lies in this lane's part of the warp; else this lane's own.
template <class T>
static T wd_shuffle(const wd_fibres::Site site, const unsigned mask, const T value, const int from, const bool is_inside) {
  static_assert(sizeof(T) <= 8, "a shuffle takes at most 8 bytes");
  unsigned long long word = 0ull;
  std::memcpy(&word, &value, sizeof value);
  const wd_fibres::Lanes& met = wd_meet(site, mask, word);
  T result = value;
  if (is_inside && met.present >> from & 1u) std::memcpy(&result, &met.words[from], sizeof result);
  return result;
}

template <class T>
static T __shfl_sync(const unsigned mask, const T value, const int source, const int width = warpSize, WD_HERE) {
  const int lane = threadIdx.x % warpSize, first = lane & -width;
  return wd_shuffle(WD_SITE("__shfl_sync"), mask, value, first + (source & (width - 1)), true);
}
template <class T>
static T __shfl_up_sync(const unsigned mask, const T value, const unsigned delta, const int width = warpSize, WD_HERE) {
  const int lane = threadIdx.x % warpSize, from = lane - static_cast<int>(delta);
  return wd_shuffle(WD_SITE("__shfl_up_sync"), mask, value, from & 31, from >= (lane & -width));
}
template <class T>
static T __shfl_down_sync(const unsigned mask, const T value, const unsigned delta, const int width = warpSize, WD_HERE) {
  const int lane = threadIdx.x % warpSize, from = lane + static_cast<int>(delta);
  return wd_shuffle(WD_SITE("__shfl_down_sync"), mask, value, from & 31, from < (lane & -width) + width);
}
template <class T>
static T __shfl_xor_sync(const unsigned mask, const T value, const int bits, const int width = warpSize, WD_HERE) {
  const int lane = threadIdx.x % warpSize, from = lane ^ bits;
  return wd_shuffle(WD_SITE("__shfl_xor_sync"), mask, value, from & 31, from < (lane & -width) + width);
}

// ---- ends

static inline void wd_yield(const char* what, const char* file, int line) {
  if (wd_fibres::runner != nullptr) wd_wait(wd_fibres::State::ready, WD_SITE(what));
}

[[noreturn]] static inline void __trap() { wd_stop("__trap was called"); }

#if defined(__GLIBC__)
// Called by `assert`: ends the launch with an error; the C library's version would end the process.
extern "C" __attribute__((noreturn, visibility("hidden"))) void __assert_fail(const char* rule, const char* file,
                                                                             unsigned line, const char*) noexcept {
  wd_stop(std::string("assert(") + rule + ") does not hold (" + file + ":" + std::to_string(line) + ")");
}
#endif

// ---- writes

// The compiler calls these (-fsanitize=thread) at each access to memory that others may see.
#define WD_HOOK extern "C" WD_UNSEEN __attribute__((visibility("hidden"))) void
WD_HOOK wd_before_write(void* address) {
  if (wd_fibres::runner != nullptr) wd_fibres::runner->go_in_step(address);
}
#define WD_ACCESSES(size)                                                                 \
  WD_HOOK __tsan_read##size(void*) {}                                                     \
  WD_HOOK __tsan_unaligned_read##size(void*) {}                                           \
  WD_HOOK __tsan_write##size(void* address) { wd_before_write(address); }                 \
  WD_HOOK __tsan_unaligned_write##size(void* address) { wd_before_write(address); }       \
  WD_HOOK __tsan_read_write##size(void* address) { wd_before_write(address); }            \
  WD_HOOK __tsan_unaligned_read_write##size(void* address) { wd_before_write(address); }
WD_ACCESSES(1)
WD_ACCESSES(2)
WD_ACCESSES(4)
WD_ACCESSES(8)
WD_ACCESSES(16)
WD_HOOK __tsan_read_range(void*, size_t) {}
WD_HOOK __tsan_write_range(void* address, size_t) { wd_before_write(address); }
WD_HOOK __tsan_vptr_read(void**) {}
WD_HOOK __tsan_vptr_update(void**, void*) {}
WD_HOOK __tsan_func_entry(void*) {}
WD_HOOK __tsan_func_exit() {}
WD_HOOK __tsan_init() {}
#undef WD_HOOK
#define WD_HOOK extern "C" WD_UNSEEN __attribute__((visibility("hidden"))) void*
WD_HOOK __tsan_memcpy(void* to, const void* from, size_t bytes) {
  wd_before_write(to);
  return memmove(to, from, bytes);
}
WD_HOOK __tsan_memmove(void* to, const void* from, size_t bytes) { return __tsan_memcpy(to, from, bytes); }
WD_HOOK __tsan_memset(void* to, int byte, size_t bytes) {
  wd_before_write(to);
  return memset(to, byte, bytes);
}
