// MRI_PLUGIN again, for a file that includes a real plugin and hides its entry.
#pragma once

#define BAD_PLUGIN(kind_, params_, class_)                                        \
  MRI_EXPORT const mri_plugin_entry mri_plugin_entry_v1;                          \
  constinit const mri_plugin_entry mri_plugin_entry_v1 = {                        \
      {'M', 'R', 'I', 'P', 'L', 'U', 'G', 1},                                     \
      sizeof(mri_plugin_entry),                                                   \
      MRI_HEADER_VERSION,                                                         \
      MRI_MIN_VERSION,                                                            \
      MRI_TARGET_VERSION,                                                         \
      0,                                                                          \
      "org.example.bad",                                                          \
      "1.0.0",                                                                    \
      __VERSION__ ", " MRI_BUILD_ID,                                              \
      #kind_,                                                                     \
      ::mri::Plugin<class_, ::mri::kind::kind_<class_>, params_>::table().data(), \
      ::mri::Plugin<class_, ::mri::kind::kind_<class_>, params_>::table().size(), \
      ::mri::Plugin<class_, ::mri::kind::kind_<class_>, params_>::open}
