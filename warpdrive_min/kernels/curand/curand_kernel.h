// cuRAND's functions for kernels where the CUDA toolkit's header is missing, on Philox: other numbers than cuRAND's, equally
// distributed. A state is a seed, a sequence and how many words were drawn; one of zeros is the start of sequence 0.
// WD_OWN_STATES asks for these in any case.
#pragma once

#if defined(__CUDACC__) && !defined(WD_OWN_STATES) && __has_include(<curand_uniform.h>)
#include_next <curand_kernel.h>
#else

struct curandState {
  unsigned long long seed, sequence, drawn;
};
typedef curandState curandState_t;
typedef curandState curandStateXORWOW;
typedef curandState curandStateXORWOW_t;
typedef curandState curandStatePhilox4_32_10;
typedef curandState curandStatePhilox4_32_10_t;

WD_FN void curand_init(unsigned long long seed, unsigned long long sequence, unsigned long long offset,
                       curandState* state) {
  *state = {seed, sequence, offset};
}

WD_FN void skipahead(unsigned long long n, curandState* state) { state->drawn += n; }

WD_FN unsigned curand(curandState* state) {
  const unsigned long long word = state->drawn++, step = word / 4;
  return wd_word(wd_philox(static_cast<unsigned>(step), static_cast<unsigned>(state->sequence),
                           static_cast<unsigned>(state->sequence >> 32), 0x80000000u | static_cast<unsigned>(step >> 32),
                           static_cast<unsigned>(state->seed), static_cast<unsigned>(state->seed >> 32)),
                 static_cast<int>(word % 4));
}

WD_FN float curand_uniform(curandState* state) { return 1.f - wd_uniform(curand(state)); }  // in (0, 1], as cuRAND's

WD_FN double curand_uniform_double(curandState* state) {  // two words, 53 bits
  const unsigned long long high = curand(state), low = curand(state);
  return 1. - static_cast<double>(high << 21 | low >> 11) / 9007199254740992.;
}

WD_FN float curand_normal(curandState* state) {
  const float radius = sqrtf(-2.f * logf(curand_uniform(state)));
  return radius * cospif(2.f * curand_uniform(state));
}

WD_FN double curand_normal_double(curandState* state) {
  const double radius = sqrt(-2. * log(curand_uniform_double(state)));
  return radius * cospi(2. * curand_uniform_double(state));
}

WD_FN float2 curand_normal2(curandState* state) {
  const float radius = sqrtf(-2.f * logf(curand_uniform(state))), turn = 2.f * curand_uniform(state);
  return {radius * cospif(turn), radius * sinpif(turn)};
}

WD_FN float curand_log_normal(curandState* state, float mean, float deviation) {
  return expf(mean + deviation * curand_normal(state));
}

#if defined(WD_OWN_STATES)
// WarpDrive's states, one for each thread, by index; they need no init_random, and all runs draw the same.
static __device__ curandState_t wd_states[wkNumberEnvs * wkNumberAgents];

struct wd_state_table {
  __device__ curandState_t* operator[](const int index) const {
    wd_states[index].sequence = index;
    return wd_states + index;
  }
};
static __device__ const wd_state_table states;
#endif

#endif
