#include "cli/commands/tokenizer_option.h"

#include "absl/strings/str_cat.h"

namespace muster::cli {

void AddTokenizer(CLI::App* command, std::string& path, const std::string& otherwise) {
  command
      ->add_option("--tokenizer", path,
                   absl::StrCat("folder of a Hugging Face model, or its tokenizer.json; default: ", otherwise))
      ->type_name("PATH");
}

}  // namespace muster::cli
