// Every cap of the host in one place. Units last in the name.
#pragma once

#include <cstdint>

namespace varve {

// A plugin's library file; its symbol table is read before anything of it runs.
inline constexpr uint64_t kPluginFileBytesMax = uint64_t{1} << 30;
inline constexpr uint64_t kPluginSymbolsMax = 1 << 20;

// Texts and parameters in a plugin's entry.
inline constexpr uint64_t kPluginTextBytesMax = 256;
inline constexpr uint64_t kPluginParamsMax = 256;
inline constexpr uint32_t kPluginsPerStackMax = 32;

// What one plugin may ask of the host.
inline constexpr uint32_t kMetricsPerPluginMax = 64;
inline constexpr uint32_t kLogLinesPerSecondMax = 100;
inline constexpr uint64_t kLogLineBytesMax = 4096;
inline constexpr uint64_t kBufferAlignMax = 4096;

// How long drain() of a plugin may take.
inline constexpr uint64_t kDrainNsMax = 10'000'000'000;

inline constexpr uint32_t kThreadsMax = 1024;
// A worker without work looks for some this long before it sleeps: longer than the gaps between the
// parallel sections of one decode step, shorter than those between requests.
inline constexpr uint64_t kThreadSpinUs = 80;

}  // namespace varve
