# %% vit b | https://github.com/facebookresearch/segment-anything
import torch
from segment_anything import sam_model_registry

sam = sam_model_registry["vit_b"](checkpoint=None).to("cuda")
image = torch.randint(0, 255, (3, 683, 1024), device="cuda").float()
with torch.no_grad():
    out = sam(
        [
            {
                "image": image,
                "original_size": (683, 1024),
                "point_coords": torch.rand(1, 1, 2, device="cuda"),
                "point_labels": torch.ones(1, 1, device="cuda"),
            }
        ],
        multimask_output=True,
    )
