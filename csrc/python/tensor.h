// torch tensors as arguments: checks dtype, shape and contiguity in one place, with the argument's name in the error.
//
// Tensors are read through DLPack's C exchange API, an attribute of torch's type: nb::ndarray calls the `__dlpack__` method, a Python
// call per tensor that slows down the steps of small models.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/operations.h"
#include "errors.h"

namespace sightline {

namespace nb = nanobind;

// The part of dlpack.h that is needed here (version 1, whose layout is fixed).
namespace dlpack {
enum DeviceType : int32_t { cpu = 1 };
enum TypeCode : uint8_t { signed_integer = 0, unsigned_integer = 1, floating = 2 };
struct Tensor {
    void* data;
    int32_t device_type, device_id;
    int32_t dimensions;
    uint8_t type, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};
struct ExchangeAPI {
    struct {
        uint32_t major, minor;
    } version;
    void* previous;
    void *allocate, *managed_from_object, *managed_to_object;
    int (*tensor_from_object)(void* object, Tensor* out);
    void* current_stream;
};
const ExchangeAPI* exchange_api(PyTypeObject* type);  // null if the type has none
}  // namespace dlpack

template <class T>
struct DataType;
template <>
struct DataType<float> {
    static constexpr uint8_t type = dlpack::floating, bits = 32;
    static constexpr const char* name = "float32";
};
template <>
struct DataType<int32_t> {
    static constexpr uint8_t type = dlpack::signed_integer, bits = 32;
    static constexpr const char* name = "int32";
};
template <>
struct DataType<int64_t> {
    static constexpr uint8_t type = dlpack::signed_integer, bits = 64;
    static constexpr const char* name = "int64";
};
template <>
struct DataType<uint8_t> {
    static constexpr uint8_t type = dlpack::unsigned_integer, bits = 8;
    static constexpr const char* name = "uint8";
};

constexpr long ANY = -1;  // a size that is not checked

// A tensor argument, valid during the call. It does not own the memory: Python holds the argument.
class Tensor {
   public:
    nb::handle object;
    dlpack::Tensor view;

    long size(int dimension) const { return view.shape[dimension]; }
    long stride(int dimension) const { return view.strides[dimension]; }
    long count() const;
    bool is_contiguous() const;
    std::string describe() const;  // "torch.float32 [3, 4]"

    // Checks dtype, shape and, by default, contiguity; returns the address.
    template <class T>
    T* data(const char* name, const std::vector<long>& shape, bool contiguous = true) const {
        check(name, DataType<T>::type, DataType<T>::bits, DataType<T>::name, shape, contiguous);
        return (T*)((char*)view.data + view.byte_offset);
    }

   private:
    void check(const char* name, uint8_t type, uint8_t bits, const char* dtype, const std::vector<long>& shape, bool contiguous) const;
};

// For an argument that may be None.
template <class T>
T* optional_data(const std::optional<Tensor>& x, const char* name, const std::vector<long>& shape) {
    return x ? x->data<T>(name, shape) : nullptr;
}

std::shared_ptr<const void> reference_to(const Tensor& x);  // keeps the tensor alive

// A float32 tensor that an operation keeps alive.
FloatArray keep_floats(const std::optional<Tensor>& x, const char* name);

}  // namespace sightline

NAMESPACE_BEGIN(NB_NAMESPACE)
NAMESPACE_BEGIN(detail)
template <>
struct type_caster<sightline::Tensor> {
    NB_TYPE_CASTER(sightline::Tensor, const_name("torch.Tensor"))
    bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
        const auto* api = sightline::dlpack::exchange_api(Py_TYPE(source.ptr()));
        if (!api || api->tensor_from_object(source.ptr(), &value.view)) {
            PyErr_Clear();
            return false;
        }
        value.object = source;
        return true;
    }
    static handle from_cpp(const sightline::Tensor& tensor, rv_policy, cleanup_list*) noexcept { return tensor.object.inc_ref(); }
};
NAMESPACE_END(detail)
NAMESPACE_END(NB_NAMESPACE)
