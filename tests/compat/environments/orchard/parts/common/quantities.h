#pragma once

typedef float quantity;
using Clock = int*;

__constant__ float kGrowth = 1.25;
