// Raised in Python as sightline.errors.InputError: what was seen, what was expected, and the fix.
#pragma once
#include <stdexcept>
#include <string>
#include <utility>

namespace sightline {

struct InputError : std::invalid_argument {
    InputError(const std::string& seen, std::string expected, std::string fix = "")
        : std::invalid_argument(seen), expected(std::move(expected)), fix(std::move(fix)) {}
    std::string expected, fix;
};

}  // namespace sightline
