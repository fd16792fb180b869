// Functions for any type of quantity, and a kernel that no name outside can launch.
#pragma once

template <class Number>
__device__ quantity share(Number part, Number whole) {
  return part / static_cast<quantity>(whole);
}

template <class Number>
__global__ void fill(Number* numbers, Number value) {
  numbers[threadIdx.x] = value;
}

__device__ quantity new_fruit(int season) { return pow(2, static_cast<quantity>(-season)) * pow(std::sqrt(1.f), 2); }
