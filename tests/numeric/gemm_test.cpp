#include "kernels/gemm.h"

#include <thread>

#include "kernels/convert.h"
#include "kernels/number.h"
#include "tests/numeric/support.h"

namespace varve::kernels {
namespace {

constexpr double kTolerance = 2e-6;  // both sum in f32 or better; products of bf16 are exact
constexpr float kUntouched = 12345.0f;

struct Matrix {
  std::vector<float> f32;
  std::vector<uint16_t> bf16;
  const void* data(GemmType type) const {
    return type == GemmType::kF32 ? static_cast<const void*>(f32.data()) : bf16.data();
  }
};

Matrix random_matrix(size_t rows, size_t cols, size_t stride, uint32_t seed) {
  Matrix m;
  m.f32 = random_floats((rows - 1) * stride + cols, seed);
  m.bf16.resize(m.f32.size());
  ref::bf16_from_f32(m.f32.data(), m.bf16.data(), m.f32.size());
  return m;
}

void check(GemmShape s) {
  const Matrix a = random_matrix(s.m, s.k, s.lda, 1);
  const Matrix w = random_matrix(s.w_is_kn ? s.k : s.n, s.w_is_kn ? s.n : s.k, s.ldw, 2);
  std::vector<float> want((s.m - 1) * s.ldc + s.n, kUntouched);
  if (s.accumulate) {
    const auto start = random_floats(s.n, 3);
    for (size_t i = 0; i < s.m; ++i) {
      for (size_t j = 0; j < s.n; ++j) want[i * s.ldc + j] = start[j];
    }
  }
  std::vector<float> got = want;
  ref::gemm(s, a.data(s.type), w.data(s.type), want.data());
  cpu::gemm(s, a.data(s.type), w.data(s.type), got.data());
  for (size_t i = 0; i + 1 < s.m; ++i) {
    for (size_t j = s.n; j < s.ldc; ++j) ASSERT_EQ(got[i * s.ldc + j], kUntouched);
  }
  for (float& v : want) v = v == kUntouched ? 0.0f : v;
  for (float& v : got) v = v == kUntouched ? 0.0f : v;
  EXPECT_LE(relative_error(got, want), kTolerance)
      << s.m << " x " << s.n << " x " << s.k << " bf16 " << (s.type == GemmType::kBf16) << " kn "
      << s.w_is_kn << " accumulate " << s.accumulate;
}

void check_all_kinds(size_t m, size_t n, size_t k) {
  for (const GemmType type : {GemmType::kF32, GemmType::kBf16}) {
    for (const bool w_is_kn : {false, true}) {
      for (const bool accumulate : {false, true}) {
        GemmShape s{m, n, k, k, w_is_kn ? n : k, n, type, w_is_kn, accumulate};
        check(s);
        s.lda += 7;
        s.ldw += 8;
        s.ldc += 9;
        check(s);
      }
    }
  }
}

// ctest runs this program a second time with VARVE_CPU_TARGET=sse2, where oneDNN has no bf16.
struct Gemm : testing::Test {
  static void SetUpTestSuite() { ASSERT_EQ(apply_cpu_target_env(), ""); }
};

TEST_F(Gemm, EqualsTheReferenceOverOddShapes) {
  for (const size_t m : {1u, 31u, 32u, 97u}) {
    for (const size_t n : {1u, 16u, 53u, 96u}) {
      for (const size_t k : {1u, 32u, 33u, 64u, 127u}) check_all_kinds(m, n, k);
    }
  }
}

TEST_F(Gemm, EqualsTheReferenceOnModelShapes) {
  check_all_kinds(36, 192, 576);
  check({600, 64, 64, 576, 192, 64, GemmType::kBf16, false, false});
  check({64, 64, 160, 160, 192, 576, GemmType::kBf16, true, true});
}

TEST_F(Gemm, EmptyShapes) {
  std::vector<float> c = {1.0f, 2.0f};
  cpu::gemm({0, 2, 4, 4, 4, 2, GemmType::kF32, false, false}, nullptr, nullptr, c.data());
  EXPECT_EQ(c[0], 1.0f);
  cpu::gemm({1, 2, 0, 1, 1, 2, GemmType::kF32, false, true}, nullptr, nullptr, c.data());
  EXPECT_EQ(c[1], 2.0f);
  cpu::gemm({1, 2, 0, 1, 1, 2, GemmType::kF32, false, false}, nullptr, nullptr, c.data());
  EXPECT_EQ(c[1], 0.0f);
}

TEST_F(Gemm, ManyThreadsAtOnce) {
  const GemmShape s{70, 48, 96, 96, 96, 48, GemmType::kBf16, false, false};
  const Matrix a = random_matrix(s.m, s.k, s.lda, 1), w = random_matrix(s.n, s.k, s.ldw, 2);
  std::vector<float> want(s.m * s.n);
  ref::gemm(s, a.bf16.data(), w.bf16.data(), want.data());
  std::vector<std::vector<float>> got(4, std::vector<float>(s.m * s.n));
  std::vector<std::thread> threads;
  for (auto& c : got) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) cpu::gemm(s, a.bf16.data(), w.bf16.data(), c.data());
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& c : got) EXPECT_LE(relative_error(c, want), kTolerance);
}

}  // namespace
}  // namespace varve::kernels
