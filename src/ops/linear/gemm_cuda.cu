#include <cublasLt.h>
#include <cuda_bf16.h>

#include <array>
#include <map>
#include <stdexcept>
#include <string>

#include "ops/linear/gemm_cuda.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr size_t kWorkspace = size_t{32} << 20;  // as much as cuBLAS takes on Hopper
constexpr int kThreads = 256;

// How a product of one shape, layout, type and alignment is computed. Products of fewer rows, whose plan has
// the same key (ranged), differ in the matrices' layouts alone.
struct GemmPlan {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t left, right, c;  // as cuBLASLt sees them
  cublasLtMatmulAlgo_t algorithm;
};
using PlanKey = std::array<int64_t, 13>;

}  // namespace

struct GemmPlans {
  ~GemmPlans() {
    if (library) cublasLtDestroy(library);
  }
  cublasLtHandle_t library = nullptr;
  std::shared_ptr<void> workspace;
  std::map<PlanKey, GemmPlan> plans;
};

namespace {

const char* text_of(GemmLayout layout) {
  return layout == GemmLayout::kNN ? "NN" : layout == GemmLayout::kNT ? "NT" : "TN";
}

void check(cublasStatus_t status, const char* call, const CudaGemmArgs& args) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw std::runtime_error(std::string(call) + ": " + cublasLtGetStatusString(status) + " (" +
                           text_of(args.layout) + ", m " + std::to_string(args.m) + ", n " +
                           std::to_string(args.n) + ", k " + std::to_string(args.k) +
                           (args.a.bf16 ? ", bf16)" : ", f32)"));
}

// The largest power of two, up to 256, that the address is a multiple of.
uint32_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer) | 256;
  return static_cast<uint32_t>(address & (~address + 1));
}

const void* summand_of(const CudaGemmArgs& args) {
  return args.plus ? args.plus : args.c;
}

int64_t& rows_of(CudaGemmArgs& args) {
  return args.layout == GemmLayout::kTN ? args.k : args.m;
}

// The same product of the rows that its algorithm is chosen for: multiples of 128, and from 2048 on sixteen
// numbers between two powers of two. Compacted tensors have another number of rows in every unit and at every
// step, and choosing takes the host longer than some of these products take the GPU. The choice depends on
// the operands alone.
CudaGemmArgs ranged(const CudaGemmArgs& args) {
  constexpr int64_t kLeast = 128;
  CudaGemmArgs out = args;
  int64_t &rows = rows_of(out), step = kLeast;
  if (rows <= kLeast) return out;
  while (32 * step <= rows) step *= 2;
  rows = (rows + step - 1) / step * step;
  return out;
}

PlanKey key_of(const CudaGemmArgs& args) {
  return {static_cast<int64_t>(args.layout),
          args.a.bf16,
          args.c_bf16,
          args.m,
          args.n,
          args.k,
          args.a.stride,
          args.b.stride,
          args.c_stride,
          alignment_of(args.a.data),
          alignment_of(args.b.data),
          alignment_of(summand_of(args)),
          alignment_of(args.c)};
}

struct Preference {
  explicit Preference(const CudaGemmArgs& args) {
    check(cublasLtMatmulPreferenceInit(&value), "cublasLtMatmulPreferenceInit", args);
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspace}, args);
    // In place would add the parts of a split sum in the order in which they are ready, and in the type of a
    // bf16 result would round each part.
    const uint32_t in_f32 = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        args.c_bf16 ? in_f32 : in_f32 | uint32_t{CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE}, args);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(args.b.data), args);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(args.a.data), args);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(summand_of(args)), args);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(args.c), args);
  }
  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, const T& to, const CudaGemmArgs& args) {
    check(cublasLtMatmulPreferenceSetAttribute(&value, attribute, &to, sizeof to),
          "cublasLtMatmulPreferenceSetAttribute", args);
  }
  cublasLtMatmulPreferenceOpaque_t value;
};

void set_transposed(GemmPlan& plan, cublasLtMatmulDescAttributes_t factor, bool transposed,
                    const CudaGemmArgs& args) {
  const int32_t operation = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  check(cublasLtMatmulDescSetAttribute(&plan.product, factor, &operation, sizeof operation),
        "cublasLtMatmulDescSetAttribute", args);
}

void choose_algorithm(GemmPlans& plans, GemmPlan& plan, const CudaGemmArgs& args) {
  Preference preference(args);
  cublasLtMatmulHeuristicResult_t found[8];
  int count = 0;
  check(cublasLtMatmulAlgoGetHeuristic(plans.library, &plan.product, &plan.left, &plan.right, &plan.c,
                                       &plan.c, &preference.value, 8, found, &count),
        "cublasLtMatmulAlgoGetHeuristic", args);
  for (int i = 0; i < count; ++i) {
    if (found[i].state != CUBLAS_STATUS_SUCCESS || found[i].workspaceSize > kWorkspace) continue;
    plan.algorithm = found[i].algo;
    return;
  }
  check(CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic", args);
}

// cuBLASLt's matrices lie column by column: a row-major matrix is its transpose there. So it computes
// Cᵀ = op(B)ᵀ op(A)ᵀ, with B as the left factor.
void set_layouts(GemmPlan& plan, const CudaGemmArgs& args) {
  const bool a_transposed = args.layout == GemmLayout::kTN, b_transposed = args.layout == GemmLayout::kNT;
  const cudaDataType factor = args.a.bf16 ? CUDA_R_16BF : CUDA_R_32F,
                     sum = args.c_bf16 ? CUDA_R_16BF : CUDA_R_32F;
  const auto layout = [&](cublasLtMatrixLayout_t to, cudaDataType type, int64_t rows, int64_t columns,
                          int64_t stride) {
    check(cublasLtMatrixLayoutInit(to, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns),
                                   stride),
          "cublasLtMatrixLayoutInit", args);
  };
  layout(&plan.left, factor, b_transposed ? args.k : args.n, b_transposed ? args.n : args.k, args.b.stride);
  layout(&plan.right, factor, a_transposed ? args.m : args.k, a_transposed ? args.k : args.m, args.a.stride);
  layout(&plan.c, sum, args.n, args.m, args.c_stride);
}

void make_plan(GemmPlans& plans, GemmPlan& plan, const CudaGemmArgs& args) {
  check(cublasLtMatmulDescInit(&plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescInit",
        args);
  set_transposed(plan, CUBLASLT_MATMUL_DESC_TRANSA, args.layout == GemmLayout::kNT, args);
  set_transposed(plan, CUBLASLT_MATMUL_DESC_TRANSB, args.layout == GemmLayout::kTN, args);
  set_layouts(plan, args);
  choose_algorithm(plans, plan, args);
}

// The plan of a product of exactly these rows, made where there is none.
GemmPlan& plan_of(GemmPlans& plans, const CudaGemmArgs& args) {
  const auto [found, fresh] = plans.plans.try_emplace(key_of(args));
  if (fresh) {
    try {
      make_plan(plans, found->second, args);
    } catch (...) {
      plans.plans.erase(found);
      throw;
    }
  }
  return found->second;
}

cublasStatus_t multiply(CudaBackend dev, const GemmPlans& plans, GemmPlan& plan, const CudaGemmArgs& args) {
  return cublasLtMatmul(plans.library, &plan.product, &args.alpha, args.b.data, &plan.left, args.a.data,
                        &plan.right, &args.beta, summand_of(args), &plan.c, args.c, &plan.c, &plan.algorithm,
                        plans.workspace.get(), kWorkspace, dev.handle.stream);
}

GemmPlans& plans_of(CudaBackend dev, const CudaGemmArgs& args) {
  if (!dev.handle.gemm) {
    auto plans = std::make_shared<GemmPlans>();
    check(cublasLtCreate(&plans->library), "cublasLtCreate", args);
    plans->workspace = cuda_allocate_uninitialised(kWorkspace);
    dev.handle.gemm = std::move(plans);
  }
  return *dev.handle.gemm;
}

// A block per kThreads elements of a row of C.
template <class T>
__global__ void scale_rows_of(T* c, int64_t columns, int64_t stride, unsigned int pieces, float beta) {
  const int64_t row = blockIdx.x / pieces;
  const int64_t i = static_cast<int64_t>(blockIdx.x % pieces) * kThreads + threadIdx.x;
  if (i >= columns) return;
  T& element = c[row * stride + i];
  element = beta == 0.0f ? static_cast<T>(0.0f) : static_cast<T>(beta * static_cast<float>(element));
}

// C = beta · C, where there is nothing to sum. Nothing at all where beta is 1.
void scale(CudaBackend dev, const CudaGemmArgs& args) {
  if (args.beta == 1.0f) return;
  const unsigned int pieces = blocks_for(args.n, kThreads),
                     blocks = static_cast<unsigned int>(args.m) * pieces;
  const auto start = [&](auto* c) {
    scale_rows_of<<<blocks, kThreads, 0, dev.handle.stream>>>(c, args.n, args.c_stride, pieces, args.beta);
  };
  if (args.c_bf16) {
    start(static_cast<__nv_bfloat16*>(args.c));
  } else {
    start(static_cast<float*>(args.c));
  }
  check_launch("gemm (nothing to sum)");
}

}  // namespace

void cuda_gemm(CudaBackend dev, const CudaGemmArgs& args) {
  if (args.m <= 0 || args.n <= 0) return;
  if (args.k <= 0 && !args.plus) return scale(dev, args);
  if (args.a.bf16 != args.b.bf16)
    throw std::runtime_error("cuda_gemm: one factor is f32, the other one bf16");
  GemmPlans& plans = plans_of(dev, args);
  GemmPlan plan = plan_of(plans, ranged(args));
  set_layouts(plan, args);
  cublasStatus_t status = multiply(dev, plans, plan, args);
  // Refused before anything has started: the algorithm does not serve these rows.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE)
    status = multiply(dev, plans, plan_of(plans, args), args);
  check(status, "cublasLtMatmul", args);
}

}  // namespace fathom
