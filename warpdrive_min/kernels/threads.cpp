// Threads that share the blocks of a launch, for the backend `host`.
//
// Each thread begins with its own share of the blocks, the same in every launch, then takes from the other shares. So a
// launch waits only for blocks that have begun, not for a thread that has no core at the moment. Short launches use fewer
// threads. Waiting threads spin for a bounded time, then sleep.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#endif

namespace {

constexpr int most_threads = 1024;
constexpr double thread_ns = 5000.;  // least work of a thread; to start and to join others costs 1 to 2 us
constexpr int claim_part = 2;  // a claim takes half of the rest of a share
constexpr double patience = .25;  // of the time of the own share: before that, others keep their blocks in their caches

using Clock = std::chrono::steady_clock;
using Blocks = void (*)(void** arguments, int first, int end);

double ns_since(const Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Wait until something is true, for a limited time; returns whether it is.
template <class Condition>
bool spin(const double limit_ns, const Condition is_true) {
  if (is_true()) return true;
  for (const Clock::time_point start = Clock::now(); ns_since(start) < limit_ns;) {
    for (int turn = 0; turn < 16; ++turn) {
      if (is_true()) return true;
      relax();
    }
  }
  return false;
}

struct alignas(64) Share {
  std::atomic<uint64_t> next{0};  // number of the launch, and the first block that nobody has begun
  std::atomic<uint64_t> end{0};   // number of the launch, and the end of the share
  std::atomic<int> n_left{0};  // blocks that have not ended
  std::atomic<bool> is_asleep{false};  // the share's thread
  std::condition_variable wake;

  uint32_t launch() const { return static_cast<uint32_t>(next.load() >> 32); }
};

struct Pool {
  std::mutex launching;
  std::vector<std::thread> helpers;
  uint32_t n_launches = 0;
  std::atomic<double> spin_ns{0.};

  // Of a launch. They change only when all its blocks have ended, so they are valid for who then claims a block of it.
  std::atomic<Blocks> blocks{nullptr};
  std::atomic<void**> arguments{nullptr};
  std::atomic<int> n_threads{1};
  Share shares[most_threads];

  std::mutex sleeping;

  // Return whether all blocks of a launch have begun.
  bool has_begun(const uint32_t launch, const int n) const {
    return std::all_of(shares, shares + n, [&](const Share& share) {
      const uint64_t state = share.next.load();
      return state >> 32 != launch || (state & 0xffffffffu) >= (share.end.load() & 0xffffffffu);
    });
  }

  // Run blocks of a launch until none is left to begin; returns how many.
  int take_part(const uint32_t launch, const int own) {
    int n_done = 0;
    const int n = n_threads.load(std::memory_order_relaxed);
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < n; ++i) {
      if (i == 1) spin(patience * ns_since(start), [&] { return has_begun(launch, n); });
      Share& share = shares[(own + i) % n];
      for (uint64_t state = share.next.load();;) {
        const uint64_t limit = share.end.load();  // of the next launch already, while it is prepared
        const int first = static_cast<int>(state & 0xffffffffu), end = static_cast<int>(limit & 0xffffffffu);
        if (state >> 32 != launch || limit >> 32 != launch || first >= end) break;
        const Blocks run = blocks.load(std::memory_order_relaxed);
        void** const values = arguments.load(std::memory_order_relaxed);
        const int n_claimed = std::max(1, (end - first) / claim_part);
        if (!share.next.compare_exchange_weak(state, state + n_claimed)) continue;
        run(values, first, first + n_claimed);
        n_done += n_claimed;
        if (share.n_left.fetch_sub(n_claimed) == n_claimed) wake(shares[0]);
        state = share.next.load();
      }
    }
    return n_done;
  }

  void wake(Share& share) {
    if (!share.is_asleep.load()) return;
    std::lock_guard<std::mutex> lock(sleeping);
    share.wake.notify_one();
  }

  // Wait for a condition as the thread of a share.
  template <class Condition>
  void wait(Share& own, const Condition is_true) {
    if (spin(spin_ns.load(std::memory_order_relaxed), is_true)) return;
    std::unique_lock<std::mutex> lock(sleeping);
    own.is_asleep.store(true);
    own.wake.wait(lock, is_true);
    own.is_asleep.store(false);
  }

  [[noreturn]] void help(const int own) {
    for (uint32_t launch = 0;;) {
      wait(shares[own], [&] { return shares[own].launch() != launch; });
      take_part(launch = shares[own].launch(), own);
    }
  }

  // Return how many threads there are, at most as many as asked for; starts those that are missing.
  int start(const int n) {
    while (static_cast<int>(helpers.size()) + 1 < n) {
      try {
        helpers.emplace_back([this, own = static_cast<int>(helpers.size()) + 1] { help(own); });
      } catch (const std::system_error&) {  // the process may have no more
        break;
      }
    }
    return std::min(n, static_cast<int>(helpers.size()) + 1);
  }

  // Run blocks from `first` to `end` on `n` threads; returns how many the calling thread ran.
  int run(const Blocks run, void** values, const int first, const int end, const int n) {
    ++n_launches;
    blocks.store(run, std::memory_order_relaxed);
    arguments.store(values, std::memory_order_relaxed);
    n_threads.store(n, std::memory_order_relaxed);
    for (int i = 0; i < n; ++i) {
      const auto bound = [&](const long long part) { return first + static_cast<int>((end - first) * part / n); };
      const uint64_t number = uint64_t{n_launches} << 32;
      shares[i].end.store(number | static_cast<uint32_t>(bound(i + 1)));
      shares[i].n_left.store(bound(i + 1) - bound(i), std::memory_order_relaxed);
      shares[i].next.store(number | static_cast<uint32_t>(bound(i)));
      if (i > 0) wake(shares[i]);
    }
    const int n_done = take_part(n_launches, 0);
    wait(shares[0], [&] {
      return std::all_of(shares, shares + n, [](const Share& share) { return share.n_left.load() == 0; });
    });
    return n_done;
  }
};

Pool& pool = *new Pool;  // never deleted: at exit, threads wait in it

}  // namespace

extern "C" {

struct wd_Launch {
  Blocks blocks;
  void** arguments;
  int n_blocks;
  int n_threads;    // at most
  double block_ns;  // of one block on one thread, as measured; 0 before
};

// Run the blocks of a launch; waits for all.
void wd_run(wd_Launch* launch) {
  const int n = launch->n_blocks, most = std::min({launch->n_threads, n, most_threads});
  if (most <= 1) return launch->blocks(launch->arguments, 0, n);
  Clock::time_point start = Clock::now();
  int first = 0, n_done = 0;
  if (launch->block_ns == 0.) {
    launch->blocks(launch->arguments, 0, first = n_done = 1);
    launch->block_ns = ns_since(start);
    start = Clock::now();
    n_done = 0;
  }
  const double work_ns = launch->block_ns * (n - first);
  const int threads = static_cast<int>(std::clamp(work_ns / thread_ns, 1., static_cast<double>(std::min(most, n - first))));
  std::unique_lock<std::mutex> lock(pool.launching, std::defer_lock);
  if (threads > 1 && lock.try_lock() && pool.start(threads) > 1) {
    n_done = pool.run(launch->blocks, launch->arguments, first, n, std::min(threads, pool.start(threads)));
  } else {
    launch->blocks(launch->arguments, first, n);
    n_done = n - first;
  }
  if (n_done == 0) return;
  const double now_ns = ns_since(start) / n_done;
  launch->block_ns = std::min(now_ns, launch->block_ns * 1.25) * .125 + launch->block_ns * .875;  // outliers count little
}

void wd_spin(double ns) { pool.spin_ns.store(ns); }

// Pin the calling thread and its helpers, each to its own `n_each` cores.
void wd_pin(int threads, int n_each, const int* cores) {
#ifdef __linux__
  std::lock_guard<std::mutex> lock(pool.launching);
  const int n = pool.start(std::min(threads, most_threads));
  for (int i = 0; i < n; ++i) {
    cpu_set_t own;
    CPU_ZERO(&own);
    for (int core = 0; core < n_each; ++core) CPU_SET(cores[i * n_each + core], &own);
    pthread_setaffinity_np(i == 0 ? pthread_self() : pool.helpers[i - 1].native_handle(), sizeof own, &own);
  }
#endif
}
}
