"""Operators that take memory of a GPU by rules that only NVIDIA knows."""

from __future__ import annotations

UNMEASURED = {
    **dict.fromkeys(("_fft_c2c", "_fft_r2c", "_fft_c2r"), "torch.fft"),
    **dict.fromkeys(
        (
            "_linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex _linalg_svd "
            "cholesky_inverse cholesky_solve geqrf linalg_cholesky_ex linalg_eig linalg_eigvals "
            "linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex linalg_lstsq linalg_lu "
            "linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp linalg_qr "
            "linalg_solve_triangular ormqr triangular_solve"
        ).split(),
        "torch.linalg",
    ),
}
"""Operators whose libraries (cuFFT, cuSOLVER, MAGMA) do not publish what they take."""
